"""The model of a MambaDeployment: its download and its loading in engines."""
