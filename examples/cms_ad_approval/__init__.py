"""The approval of ad slots in a content management system: the application of the paper that aft builds on.

Importing this package declares the flow, so ``aft dispatcher examples.cms_ad_approval`` executes its runs.
"""

from .flow import ad_slot_approval

__all__ = ["ad_slot_approval"]
