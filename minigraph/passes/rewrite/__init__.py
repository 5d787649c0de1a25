"""Local rewrites: rules, predicates for their conditions, and the passes that apply them."""
