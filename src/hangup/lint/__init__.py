"""`hangup lint`: finds the places in an application's source where inference outlives its client.

It reads only the syntax tree; it never imports or runs the user's code. `source` builds a model of a file in one walk,
`vocabulary` knows what inference looks like, and each module of `rules` checks the model for one family of faults.
"""

from hangup.lint.check import lint_file, lint_source
from hangup.lint.finding import Finding, Severity
from hangup.lint.rule import RULES, Rule

__all__ = ["RULES", "Finding", "Rule", "Severity", "lint_file", "lint_source"]
