"""What is sent upstream in place of a long history."""
