"""The APIs that clients use: paths, fields, error formats, token counting and assembly of answers. No I/O."""
