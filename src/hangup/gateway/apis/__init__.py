"""The APIs that clients speak: paths, fields, error shapes, how tokens are counted and answers assembled. No I/O."""
