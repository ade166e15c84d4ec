"""Operations: one order to many runs, given in growing batches, which stops by itself if they fail again."""
