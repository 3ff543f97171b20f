"""Operations on the memory of sessions."""
