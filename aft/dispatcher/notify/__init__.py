"""Sends notices to receivers outside by webhook, until each is acknowledged or given up."""
