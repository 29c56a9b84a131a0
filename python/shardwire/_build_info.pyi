"""Written by the build: what the native part was built for."""

VERSION: str
TORCH: str
PYTHON: str
