"""Conditions of rules, in CEL: checked, bounded in cost, and evaluated."""
