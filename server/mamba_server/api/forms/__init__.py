"""Forms of answers: grammars, schemas and calls that an answer must follow."""
