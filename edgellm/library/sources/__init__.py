"""Where model files come from. Each source stages one verified file; publishing is not its business."""
