from .by_hand import tritonserver
from .charts import nets, nets_summary
from .grading import broken_repositories

__all__ = ["broken_repositories", "nets", "nets_summary", "tritonserver"]
