"""The models that one gateway serves: their names, who may use them, and the parts that serve each."""
