"""The strategies besides `epochs`: what they keep of a context, and when."""
