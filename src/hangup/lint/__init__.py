"""`hangup lint`: finds, in the source of an application, the places where inference outlives its client.

Only the syntax tree is read; nothing of the user's is imported or run. `source` reads a file into a model in one walk,
`vocabulary` knows what inference looks like, each module of `rules` asks the model one family of questions.
"""

from hangup.lint.check import lint_file, lint_source
from hangup.lint.finding import Finding, Severity
from hangup.lint.rule import RULES, Rule

__all__ = ["RULES", "Finding", "Rule", "Severity", "lint_file", "lint_source"]
