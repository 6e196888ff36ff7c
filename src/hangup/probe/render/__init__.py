"""Reports as text that one wants to share: each format is a pure function of the reports."""
