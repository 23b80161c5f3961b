"""Local updates: workers that step alone and meet every H steps (DiLoCo and its family), with the bits of one process.

W workers are played by N <= W ranks. All that a worker has (parameters, inner optimizer, residuals) belongs to its
number, and every sum is taken along one tree over these numbers, so that no bit depends on N.
"""
