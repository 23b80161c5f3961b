"""Text for people: what suits a terminal and a pipe, tables, and numbers with their units."""
