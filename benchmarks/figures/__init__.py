"""The numbers of published pages: which result has each, and which command measures it again."""
