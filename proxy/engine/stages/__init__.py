"""Features of a call, one file each: what they change of what is sent, and what they answer."""
