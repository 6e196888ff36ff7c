"""The linter's field test: public projects, split before any rule is changed, and the judgement of each finding."""
