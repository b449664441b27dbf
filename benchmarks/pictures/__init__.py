"""Pictures of the documentation that show measurements: drawn from kept results, for light and dark pages."""
