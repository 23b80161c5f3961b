"""Pages: each one self-contained HTML file, usable by keyboard and in the dark, made of the parts in assets/."""
