"""The page of a function: one HTML file, which asks for nothing else, and what reads it again."""
