"""What becomes of a fault: tried again later, on which level, or final?"""
