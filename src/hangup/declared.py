"""The metaclass of classes that describe something by their attributes."""

from __future__ import annotations


class Declared(type):
    """The type of APIs and of kinds of engines: each is a class whose attributes replace those of its base.

    It does nothing. But mypyc leaves a class with a metaclass an ordinary class, whose attributes are the class's own, while
    the attributes of other compiled classes are fields of their instances, each of one type.
    """
