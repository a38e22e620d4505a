"""Who uses which GPUs of an instance that several users share: reservations, which ``gpu-fleet gpu`` makes.

``devices`` lists GPUs and MIG instances, ``book`` says who has which until when (pure), ``book_file`` keeps
that, ``mps`` is for several processes of one user, ``command`` for users, who change the book by sudo of
``/usr/libexec/gpu-fleet/reserve-gpus`` alone.
"""
