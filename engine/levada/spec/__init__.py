"""The manifest: Pipeline and TableSync as pydantic models. No I/O but for reading a YAML text handed in."""
