"""The planner's predictions beside what was measured."""
