"""Sources for engines and frameworks that run inside the application: each yields OpenAI's chunks and always stops its engine.

They know their engines by interface and import none of them before it is used.
"""
