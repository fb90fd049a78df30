"""What one lesson alone uses, a folder each: its pictures, its dashboard, what it measures with, and its graders.

A folder is named as its lesson is in `lessons/`, without the number. `notebook.check` finds the graders of exercise 4.1
in `grading` of the folder of lesson 04.
"""
