[default]
credential_process = /bin/false
