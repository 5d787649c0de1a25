"""From expressions to a program in memory: trace, optimise, lower, plan, bind."""
