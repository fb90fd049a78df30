from . import request_path
from .charts import request_map, request_map_summary

__all__ = ["request_map", "request_map_summary", "request_path"]
