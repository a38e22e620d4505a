from gpu_fleet_stacks import main

main()
