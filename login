[default]
login_session=x
