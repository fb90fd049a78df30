from .charts import guided_steps, guided_steps_summary

__all__ = ["guided_steps", "guided_steps_summary"]
