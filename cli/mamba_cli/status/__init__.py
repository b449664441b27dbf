"""What an endpoint and the engines behind it do at the moment."""
