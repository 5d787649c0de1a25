"""Local rewrites: rules, what they may ask of a value, and the passes that apply them."""
