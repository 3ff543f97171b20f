"""The API's document, and what its paths share."""
