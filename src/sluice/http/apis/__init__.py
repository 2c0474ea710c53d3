"""The APIs beside OpenAI's completions and chats, one folder or file each."""
