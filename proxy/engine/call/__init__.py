"""How calls are carried, whatever they are: read message by message, counted, or passed on unread."""
