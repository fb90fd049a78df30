from .charts import token_timeline, token_timeline_summary

__all__ = ["token_timeline", "token_timeline_summary"]
