"""Write the pictures."""

from support.charts import IMAGES, pictures

for name, content in pictures().items():
    (IMAGES / name).write_text(content, "utf-8")
