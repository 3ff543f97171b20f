"""Programs for developers of the project; none is part of the package."""
