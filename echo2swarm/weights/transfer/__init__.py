"""The transfer of chunks between peers: download, upload, seeding and bans."""
