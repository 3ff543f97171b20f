"""The way in. Rule: turns ASGI into engine calls; decides nothing about context."""
