"""GPU reservations on an instance that several users share, made by ``gpu-fleet gpu``.

``devices`` lists GPUs and MIG instances, ``reservations`` decides who has which until when (pure),
``reservations_file`` stores that, ``mps`` runs several processes of one user, and ``command`` is for users.
Users change the file only by sudo of ``/usr/libexec/gpu-fleet/reserve-gpus``.
"""
