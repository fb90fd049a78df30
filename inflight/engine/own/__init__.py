"""What a learner's own file goes through: loaded, tried, held to the rules, and named when it fails."""
